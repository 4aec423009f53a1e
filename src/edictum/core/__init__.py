"""Private: the lifecycle of a call and its values. Pure: no I/O, no clock, no port is called."""
