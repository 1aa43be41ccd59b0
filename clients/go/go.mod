module github.com/laneway-project/laneway/clients/go

go 1.21
