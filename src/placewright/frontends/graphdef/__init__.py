"""Reads TensorFlow GraphDefs and SavedModels."""
