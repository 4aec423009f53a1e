"""The command line: ``edictum <command>``. Each command is a module of its own, imported when it is
asked for.
"""
