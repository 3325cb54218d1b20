.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

build: ## build bin/millrace
	go build -o bin/millrace ./cmd/millrace

proto: ## write the Go of api/*.proto again (needs protoc)
	go build -o bin/ tool
	cd api && PATH="$(CURDIR)/bin:$$PATH" protoc -I . --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative --connect-go_out=. --connect-go_opt=paths=source_relative,simple=true millrace/feed/v1/feed.proto
	cd api && PATH="$(CURDIR)/bin:$$PATH" protoc -I . --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative millrace/node/v1/node.proto

kafka: ## start a real Kafka on 127.0.0.1:19092 (needs Java and, once, Maven)
	scripts/kafka start

kafka-stop: ## end it
	scripts/kafka stop

.PHONY: help build proto kafka kafka-stop
