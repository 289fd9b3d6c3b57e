"""Reads what the demo and tests need from an agent's status (docs/protocol.md, "Status")."""


def bytes_pulled(status):
    """Bytes that this agent has received from other agents since it started."""
    return status["network"]["bytes_pulled"]


def bytes_pulled_to_restore(status):
    """Bytes of these that the last restore needed, before the job was released."""
    return status["restore"]["bytes_pulled"]


def last_error(status):
    """The agent's newest complaint, or an empty text."""
    return status["last_error"] or ""


def restore_seconds(status):
    """Seconds from the agent's taking the job's configuration to the decision, to all bytes there
    and verified, and to the links; None for what did not happen."""
    restore = status["restore"]
    return [restore[f"seconds_to_{x}"] for x in ("decision", "prepared", "release")]
