/* Interrupts: eventfds of the client, by type and vector. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/internal.h"

struct irq_type {
	uint32_t count;
	uint32_t flags;
};

static const struct irq_type types[VFIO_PCI_NUM_IRQS] = {
	[VFIO_PCI_MSIX_IRQ_INDEX] = {KVD_CARD_VECTORS, VFIO_IRQ_INFO_EVENTFD | VFIO_IRQ_INFO_MASKABLE},
	[VFIO_PCI_ERR_IRQ_INDEX] = {1, VFIO_IRQ_INFO_EVENTFD | VFIO_IRQ_INFO_NORESIZE},
	[VFIO_PCI_REQ_IRQ_INDEX] = {1, VFIO_IRQ_INFO_EVENTFD | VFIO_IRQ_INFO_NORESIZE},
};

int kvd_card_irqs_init(struct kvd_card *card)
{
	for (uint32_t index = 0; index < VFIO_PCI_NUM_IRQS; index++) {
		struct kvd_card_irq *irq = &card->irqs[index];

		irq->flags = types[index].flags;
		if (!types[index].count)
			continue;
		irq->eventfds = malloc(types[index].count * sizeof(*irq->eventfds));
		irq->masked = calloc(types[index].count, sizeof(*irq->masked));
		irq->pending = calloc(types[index].count, sizeof(*irq->pending));
		if (!irq->eventfds || !irq->masked || !irq->pending)
			return -ENOMEM;
		for (uint32_t i = 0; i < types[index].count; i++)
			irq->eventfds[i] = -1;
		irq->count = types[index].count;
	}
	return 0;
}

static void set_eventfd(struct kvd_card_irq *irq, uint32_t vector, int fd)
{
	if (irq->eventfds[vector] >= 0)
		close(irq->eventfds[vector]);
	irq->eventfds[vector] = fd;
}

void kvd_card_irqs_clear(struct kvd_card *card)
{
	for (uint32_t index = 0; index < VFIO_PCI_NUM_IRQS; index++) {
		struct kvd_card_irq *irq = &card->irqs[index];

		for (uint32_t i = 0; i < irq->count; i++) {
			set_eventfd(irq, i, -1);
			irq->masked[i] = false;
			irq->pending[i] = false;
		}
	}
}

void kvd_card_irqs_fini(struct kvd_card *card)
{
	kvd_card_irqs_clear(card);
	for (uint32_t index = 0; index < VFIO_PCI_NUM_IRQS; index++) {
		struct kvd_card_irq *irq = &card->irqs[index];

		free(irq->eventfds);
		free(irq->masked);
		free(irq->pending);
		*irq = (struct kvd_card_irq){0};
	}
}

int kvd_card_irq_info(struct kvd_card *card, const struct kvd_card_request *request, struct kvd_card_reply *reply)
{
	struct vfio_irq_info info;

	memcpy(&info, request->payload, sizeof(info));
	if (info.argsz < sizeof(info) || info.index >= VFIO_PCI_NUM_IRQS)
		return -EINVAL;
	info.argsz = sizeof(info);
	info.flags = card->irqs[info.index].flags;
	info.count = card->irqs[info.index].count;
	memcpy(reply->payload, &info, sizeof(info));
	reply->bytes = sizeof(info);
	return 0;
}

/* A write to anything but an eventfd could block or signal us. */
static bool is_eventfd(int fd)
{
	static const char wanted[] = "anon_inode:[eventfd]";
	char path[32], target[sizeof(wanted)];
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	n = readlink(path, target, sizeof(target));
	return n == (ssize_t)sizeof(wanted) - 1 && !memcmp(target, wanted, sizeof(wanted) - 1);
}

/* An eventfd that its owner let run full would block us; it is readable anyway. */
static void signal_eventfd(int fd)
{
	struct pollfd poll_fd = {.fd = fd, .events = POLLOUT};
	uint64_t one = 1;

	if (poll(&poll_fd, 1, 0) == 1 && poll_fd.revents & POLLOUT)
		(void)!write(fd, &one, sizeof(one));
}

void kvd_card_irq_trigger(struct kvd_card *card, uint32_t index, uint32_t vector)
{
	struct kvd_card_irq *irq = &card->irqs[index];

	if (vector >= irq->count)
		return;
	if (irq->masked[vector])
		irq->pending[vector] = true;
	else if (irq->eventfds[vector] >= 0)
		signal_eventfd(irq->eventfds[vector]);
}

bool kvd_card_irq_pending(const struct kvd_card *card, uint32_t vector)
{
	return card->irqs[VFIO_PCI_MSIX_IRQ_INDEX].pending[vector];
}

static void set_mask(struct kvd_card *card, uint32_t index, uint32_t vector, bool masked)
{
	struct kvd_card_irq *irq = &card->irqs[index];
	bool pending = irq->pending[vector];

	irq->masked[vector] = masked;
	if (masked || !pending)
		return;
	irq->pending[vector] = false;
	kvd_card_irq_trigger(card, index, vector);
}

static int set_eventfds(struct kvd_card_irq *irq, const struct vfio_irq_set *set, const struct kvd_card_request *request)
{
	if (request->fd_count && request->fd_count != set->count)
		return -EINVAL;
	for (uint32_t i = 0; i < request->fd_count; i++) {
		if (!is_eventfd(request->fds[i]))
			return -EINVAL;
	}
	for (uint32_t i = 0; i < set->count; i++) {
		set_eventfd(irq, set->start + i, request->fd_count ? request->fds[i] : -1);
		if (request->fd_count)
			request->fds[i] = -1;
	}
	return 0;
}

/* DATA_NONE and DATA_BOOL: the client acts on vectors itself. */
static int act(struct kvd_card *card, const struct vfio_irq_set *set, const uint8_t *bools)
{
	for (uint32_t i = 0; i < set->count; i++) {
		if (bools && !bools[i])
			continue;
		if (set->flags & VFIO_IRQ_SET_ACTION_TRIGGER)
			kvd_card_irq_trigger(card, set->index, set->start + i);
		else
			set_mask(card, set->index, set->start + i, set->flags & VFIO_IRQ_SET_ACTION_MASK);
	}
	return 0;
}

static bool is_single(uint32_t flags)
{
	return flags && !(flags & (flags - 1));
}

static int check_set(const struct kvd_card *card, const struct vfio_irq_set *set, uint32_t payload_bytes)
{
	const uint32_t known = VFIO_IRQ_SET_DATA_TYPE_MASK | VFIO_IRQ_SET_ACTION_TYPE_MASK;
	uint32_t data = set->flags & VFIO_IRQ_SET_DATA_TYPE_MASK;
	const struct kvd_card_irq *irq;

	if (set->argsz < sizeof(*set) || set->index >= VFIO_PCI_NUM_IRQS)
		return -EINVAL;
	if (set->flags & ~known || !is_single(data) || !is_single(set->flags & VFIO_IRQ_SET_ACTION_TYPE_MASK))
		return -EINVAL;
	irq = &card->irqs[set->index];
	if (!irq->count || set->start > irq->count || set->count > irq->count - set->start)
		return -EINVAL;
	if (!(set->flags & VFIO_IRQ_SET_ACTION_TRIGGER)) {
		/* No type tells the client by eventfd that a mask changed: only the client itself changes it. */
		if (!(irq->flags & VFIO_IRQ_INFO_MASKABLE) || data == VFIO_IRQ_SET_DATA_EVENTFD)
			return -ENOTSUP;
	}
	if (!set->count && (data != VFIO_IRQ_SET_DATA_NONE || set->start || !(set->flags & VFIO_IRQ_SET_ACTION_TRIGGER)))
		return -EINVAL;
	return data == VFIO_IRQ_SET_DATA_BOOL && payload_bytes != sizeof(*set) + set->count ? -EINVAL : 0;
}

int kvd_card_irq_set(struct kvd_card *card, const struct kvd_card_request *request, struct kvd_card_reply *reply)
{
	struct vfio_irq_set set;
	struct kvd_card_irq *irq;
	int err;

	(void)reply;
	memcpy(&set, request->payload, sizeof(set));
	err = check_set(card, &set, request->bytes);
	if (err)
		return err;
	irq = &card->irqs[set.index];
	if (set.flags & VFIO_IRQ_SET_DATA_EVENTFD)
		return set_eventfds(irq, &set, request);
	if (request->fd_count)
		return -EINVAL;
	if (!set.count) {
		for (uint32_t i = 0; i < irq->count; i++)
			set_eventfd(irq, i, -1);
		return 0;
	}
	return act(card, &set, set.flags & VFIO_IRQ_SET_DATA_BOOL ? request->payload + sizeof(set) : NULL);
}
