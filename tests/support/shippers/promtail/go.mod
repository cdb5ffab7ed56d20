module forebay.example/promtail

go 1.26.0

require github.com/grafana/loki/v3 v3.5.0

tool github.com/grafana/loki/v3/clients/cmd/promtail
