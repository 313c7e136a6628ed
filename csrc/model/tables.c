/* The engine on the client's tables. */
#include <errno.h>
#include <string.h>

#include "model/internal.h"

bool kvd_card_tables_reached(struct kvd_card *card)
{
	return kvd_card_dma(card, kvd_card_register(card, KVD_ABI_BAR0_TABLES_ADDRESS_AT),
			    kvd_card_register(card, KVD_ABI_BAR0_TABLES_BYTES_AT), true);
}
