//go:build tools

// Package tools pins Prometheus, which the telemetry tests run against,
// although nothing here imports it.
package tools

import (
	_ "github.com/prometheus/prometheus/cmd/prometheus"
	_ "github.com/prometheus/prometheus/cmd/promtool"
)
