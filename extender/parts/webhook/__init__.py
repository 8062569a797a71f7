"""What the API server asks about pods as they are made: docs/parts/webhook.md."""
