"""Names of the published library that this one replaces, for programs written for it.

New code does not need them. Each name stays importable where it was: from ``edictum`` and from
``edictum.registry``, ``edictum.hooks``, ``edictum.limits``, ``edictum.session`` and
``edictum.storage``.
"""
