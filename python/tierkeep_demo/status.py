"""Reads what the demo and tests need from an agent's status (docs/protocol.md, "Status")."""


def bytes_pulled(status):
    """Bytes that this agent has received from other agents since it started."""
    return status["network"]["bytes_pulled"]


def last_error(status):
    """The agent's newest complaint, or an empty text."""
    return status["last_error"] or ""
