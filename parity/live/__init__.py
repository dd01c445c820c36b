"""Live checks: reference against candidate on generated inputs."""
