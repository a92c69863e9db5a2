"""Models of sparse examples: linear models, and what factorization machines and networks share.

    text -> batch -> worker: rows with state -> PULL -> kernel threads -> differences -> PUSH
    tables -> evaluate, export -> .npz -> predict

``settings.py``          what all of them are told
``batch.py``             text -> numbered examples
``worker.py``            their base class
``write_back_cache.py``  rows of an only worker
``delta_shares.py``      differences of several workers
``metrics.py``           scores and labels -> figures
``evaluate.py``          files, seen by the master
``export.py``            model files
``predict.py``           a model file -> predictions
``linear.py``            logistic, linear, multinomial (``linear_settings.py``)
``fm.py``                factorization machines
``net.py``               a network, its first layer sparse (``first_layer.py``)
"""
