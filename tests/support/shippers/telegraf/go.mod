module forebay.example/telegraf

go 1.26.0

require github.com/influxdata/telegraf v1.37.2

tool github.com/influxdata/telegraf/cmd/telegraf
