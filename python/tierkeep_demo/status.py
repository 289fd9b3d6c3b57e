"""Reads what the demo and tests need from an agent's status."""


def bytes_pulled(status):
    """Bytes that this agent has received from other agents since it started."""
    return status["bytes_pulled"]
