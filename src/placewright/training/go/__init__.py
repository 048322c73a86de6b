"""Training of GO: imitation of demonstrations, elites and PPO."""
