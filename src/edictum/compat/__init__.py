"""Names of the published library that this one replaces, for programs written for it.

New code does not need them. Each name stays importable where it was: from ``edictum`` and from
``edictum.registry``, ``edictum.envelope``, ``edictum.hooks``, ``edictum.limits``,
``edictum.session``, ``edictum.storage``, ``edictum.pipeline`` and ``edictum.yaml_engine``.
``python -m edictum.compat.report PATH`` tells what in a code base needs a change.
"""
