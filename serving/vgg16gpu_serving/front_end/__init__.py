"""A front-end process: HTTP in and out, and everything that a request meets before and after the device."""
