"""The harness: tells whether an implementation of Disco is Disco, layer by layer."""
