"""`make test-night`: what .ci/run leaves out, in parts that can be resumed (see __main__.py)."""
