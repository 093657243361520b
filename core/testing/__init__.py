"""The conformance kit: what a component must do, as tests that anybody runs against their own.

    pytest --pyargs core.testing --load ./mine.py --backend=mine

Modules called `test_..._contract` are the tests. The others are the oracles, the made-up steps and
the traffic behind them, for use in tests of your own.
"""
