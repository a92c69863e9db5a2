"""Models of sparse examples: linear models, factorization machines, networks.

    text -> batch -> worker: rows with state -> PULL -> kernel threads -> deltas -> PUSH
    tables -> evaluate, export -> .npz -> predict

``settings.py``          settings of all of them
``batch.py``             text -> numbered examples
``worker.py``            base class
``delta_shares.py``      how far steps go, by which deltas of several workers are scaled
``metrics.py``           scores and labels -> figures
``evaluate.py``          evaluation on hold-out files; a model file -> predictions
``export.py``            model files
``linear.py``            logistic, linear, multinomial
``fm.py``                factorization machines
``net.py``               a network with a sparse first layer (``first_layer.py``)
"""
