"""Real training clients on a small cluster of Tierkeep agents, all on one machine."""
