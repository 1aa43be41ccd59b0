// Publish an order, and handle it: go run ./example http://127.0.0.1:7878
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"

	client "github.com/laneway-project/laneway/clients/go"
	"github.com/laneway-project/laneway/clients/go/laneway"
)

func main() {
	ctx := context.Background()
	api := client.Connect(os.Args[1], os.Getenv("LANEWAY_TOKEN"))

	message := laneway.NewMessageBody()
	message.SetBody(map[string]any{"order": 42})
	message.SetKey("order-42")
	receipt, _, err := api.MessagesAPI.Publish(ctx, "orders").MessageBody(*message).Execute()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("published:", receipt.Outcome)

	lease := laneway.NewLeaseBody()
	lease.SetN(10)
	lease.SetWait(client.Duration("10s"))
	lease.SetTopics([]string{"orders"})
	_, err = client.Work(ctx, api, *lease, func(delivery laneway.DeliveryAnswer) error {
		body, err := json.Marshal(delivery.Body)
		fmt.Printf("handled %s, attempt %d\n", body, delivery.Attempt)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
}
