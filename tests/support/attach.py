"""Gives a model its connection to shards, as a worker process does when a job starts."""


def attach(model, client, wires, tables, clocked=False):
    """`tables` by name: number and declaration, as the master has answered `Declare`."""
    model._connect(client, wires, tables, clocked)


def attached(model):
    """The client of a model that is connected, and its tables: number and declaration by name."""
    return model._client, model._tables
