"""A process that times the cases of one module on request, so that systems in different venvs can
take turns.

Started as ``python worker.py <cases.py> [module ...]``. Each request is one JSON line: ``{"case":
name, "n": iterations}`` is answered with seconds per iteration (of every clock that the case reads),
``{"fact": name}`` with whatever the fact function returns, ``{"list": true}`` with the names. A case
is made once, when it is first asked for. The modules named behind the cases cannot be imported:
that is how a part of the library is switched off. Standard library only: it runs inside the peers'
venvs too.
"""

import gc
import importlib.util
import json
import sys


def load(path):
    spec = importlib.util.spec_from_file_location("cases", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answer(module, made, request):
    if "list" in request:
        return {"cases": sorted(module.CASES), "facts": sorted(module.FACTS)}
    if "fact" in request:
        return module.FACTS[request["fact"]]()
    name, n = request["case"], request["n"]
    if name not in made:
        made[name] = module.CASES[name]()
        made[name](max(1, n // 10))  # warm up
        gc.collect()
    seconds = made[name](n)
    return [part / n for part in seconds] if isinstance(seconds, tuple) else seconds / n


def serve(path, *unimportable):
    sys.modules.update(dict.fromkeys(unimportable))
    replies, sys.stdout = (
        sys.stdout,
        sys.stderr,
    )  # whatever a library prints must not mix with the answers
    module, made = load(path), {}
    for line in sys.stdin:
        try:
            reply = {"ok": answer(module, made, json.loads(line))}
        except Exception as exc:
            reply = {"error": f"{type(exc).__name__}: {exc}"}
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    serve(*sys.argv[1:])
