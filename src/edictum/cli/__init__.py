"""The command line, ``edictum <command>``: a module per command, imported when it is asked for."""
