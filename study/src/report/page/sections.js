// The sections of a report, in their order.

start([answer, batches, workers, iteration, memory, layers, fit, policies, origin]);
