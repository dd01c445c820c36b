"""What is there for speed alone: unique rows, parallel work, fused losses."""
