"""Deployment: puts a model on this machine in one call.

`model_placement` captures, profiles, plans, verifies and applies; `call_mix` says what the model
will be called with; `plan_store` keeps plans between two starts of a program.
"""
