"""The three success checks of the documents that this library was made from, as printed there."""

# ruff: noqa: SIM102, SIM103 - as printed


def http_success_check(tool_name, result):
    if isinstance(result, dict) and result.get("status", 200) >= 400:
        return False
    return True


def db_success_check(tool_name, result):
    if tool_name == "query_users" and isinstance(result, dict):
        if not result.get("rows"):
            return False
    return True


def unified_success_check(tool_name, result):
    if result is None:
        return False
    if isinstance(result, dict) and result.get("ok") is False:
        return False
    if isinstance(result, str) and "Traceback" in result:
        return False
    return True
