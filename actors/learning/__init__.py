"""What a learner computes with: models, the packed forward pass, optimiser steps, checkpoints."""
