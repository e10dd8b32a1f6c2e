"""Files on their way to a device: threads or processes that read and decode them into the slots of a ring."""
