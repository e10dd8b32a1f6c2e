"""The published experiments, a module each: `EXPERIMENT` in it is all that is known of one."""
