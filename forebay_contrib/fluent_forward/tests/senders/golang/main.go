// Send records by fluent-logger-golang, which Docker's log driver is made of: program PORT RECORDS ACK(true|false) NETWORK(tcp|tls)
package main

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/fluent/fluent-logger-golang/fluent"
)

func main() {
	if err := send(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func send() error {
	port, _ := strconv.Atoi(os.Args[1])
	records, _ := strconv.Atoi(os.Args[2])
	config := fluent.Config{
		FluentHost: "127.0.0.1", FluentPort: port, RequestAck: os.Args[3] == "true", SubSecondPrecision: true,
		ReadTimeout: time.Minute, WriteTimeout: time.Minute,
	}
	if os.Args[4] == "tls" {
		config.FluentNetwork, config.TlsInsecureSkipVerify = "tls", true
	}
	logger, err := fluent.New(config)
	if err != nil {
		return err
	}
	defer logger.Close()
	for n := 0; n < records; n++ {
		at := time.Unix(1700000000, int64(n))
		if err := logger.PostWithTime("app.log", at, map[string]any{"n": n, "text": "ü"}); err != nil {
			return err
		}
	}
	return nil
}
