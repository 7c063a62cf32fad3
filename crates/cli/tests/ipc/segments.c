// SPDX-License-Identifier: MIT OR Apache-2.0
// segments COUNT MEBIBYTES: makes segments, writes to all of them, and removes
// them. Prints how many could be made.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/shm.h>

int main(int argc, char **argv)
{
	int count = argc > 2 ? atoi(argv[1]) : 0, made = 0, failed = 0;
	size_t size = argc > 2 ? (size_t)atol(argv[2]) << 20 : 0;
	char *at[16];
	int ids[16];

	for (; made < count && made < 16; made++) {
		ids[made] = shmget(IPC_PRIVATE, size, 0600);
		if (ids[made] < 0)
			break;
		at[made] = shmat(ids[made], NULL, 0);
		if (at[made] == (char *)-1)
			return 1;
	}
	for (int i = 0; i < made; i++)
		memset(at[i], i + 1, size);
	for (int i = 0; i < made; i++) {
		failed |= at[i][0] != i + 1 || at[i][size - 1] != i + 1;
		failed |= shmdt(at[i]) != 0 ||
			  shmctl(ids[i], IPC_RMID, NULL) != 0;
	}
	printf("%d\n", made);
	return failed;
}
