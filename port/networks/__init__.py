"""The networks: the agent's and the meta-network, as functions of named parameters."""
