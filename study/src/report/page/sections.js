// The sections of a report, in their order.

start([answer, batches, iteration, memory, layers, fit, policies, origin]);
