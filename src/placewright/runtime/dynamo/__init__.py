"""The compiler backend: graphs that TorchDynamo hands over are run under a plan."""
