"""Private: the lifecycle of a call and the values it works with. Pure: no I/O, no clock, no port."""
