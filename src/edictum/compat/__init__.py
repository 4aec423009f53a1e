"""Names of the published library that this one replaces, for programs written for it.

New code does not need them. Each name stays importable where it was: from ``edictum`` and from
``edictum.registry``, ``edictum.envelope``, ``edictum.hooks``, ``edictum.limits``,
``edictum.session``, ``edictum.storage``, ``edictum.pipeline`` and ``edictum.yaml_engine``. Run
``python -m edictum.compat.report PATH`` to list what a code base must change.
"""
