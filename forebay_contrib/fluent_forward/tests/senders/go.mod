module forebay.example/senders

go 1.26.0

require github.com/fluent/fluent-logger-golang v1.10.1
