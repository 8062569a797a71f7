"""The ledger of which pods hold which GPUs."""
