"""Private: drivers, effect handlers, tickets and lease renewal between the core and the guard."""
