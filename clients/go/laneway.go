// Package client connects to `laneway serve`: its generated API, and two functions by hand.
package client

import (
	"context"
	"fmt"

	"github.com/laneway-project/laneway/clients/go/laneway"
)

// Connect returns a client of the gateway at url. An empty token sends none.
func Connect(url, token string) *laneway.APIClient {
	configuration := laneway.NewConfiguration()
	configuration.Servers = laneway.ServerConfigurations{{URL: url}}
	if token != "" {
		configuration.AddDefaultHeader("Authorization", "Bearer "+token)
	}
	return laneway.NewAPIClient(configuration)
}

// Duration is a duration as text, such as "10m".
func Duration(text string) laneway.Duration { return laneway.Duration{String: &text} }

// Work leases messages, handles each, and settles it: ack, or retry if the handler fails.
func Work(ctx context.Context, client *laneway.APIClient, lease laneway.LeaseBody,
	handle func(laneway.DeliveryAnswer) error) (int, error) {
	leased, _, err := client.ConsumeAPI.Lease(ctx).LeaseBody(lease).Execute()
	if err != nil {
		return 0, fmt.Errorf("lease: %w", err)
	}
	for _, delivery := range leased.Deliveries {
		settlement := laneway.NewSettleBody(delivery.Receipt)
		if err := handle(delivery); err != nil {
			settlement.SetAction("retry")
			settlement.SetError(err.Error())
		}
		body := []laneway.SettleBody{*settlement}
		if _, _, err := client.ConsumeAPI.Settle(ctx).SettleBody(body).Execute(); err != nil {
			return 0, fmt.Errorf("settle: %w", err)
		}
	}
	return len(leased.Deliveries), nil
}
