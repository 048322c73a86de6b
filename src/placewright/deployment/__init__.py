"""Deployment: puts a model on this machine in one call.

`model_placement` captures, profiles, plans, verifies and applies; `call_mix` says what the model
will be called with; `stored_plan` is what the store holds of it between two starts of a program.
"""
