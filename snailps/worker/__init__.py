"""A worker process: leases blocks, drives a model, pushes, reports."""
