"""What users touch: `Worker`, `Block`, `Results`, `Table`, `Tensor`, `AccessMethod`."""
