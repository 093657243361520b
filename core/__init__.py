"""The runtime of Plait: registries, parallel plans, the paged cache and the step loop."""
