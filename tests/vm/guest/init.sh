#!/usr/bin/busybox sh
# The guest's first process: file systems, modules, the tests, power off. What the host waits for is printed by `mark`.
export PATH=/usr/bin:/usr/sbin HOME=/root LANG=C.UTF-8 TERM=dumb KVD_VM_GUEST=1 PYTHONDONTWRITEBYTECODE=1
mark() { echo; echo "VM-TEST $*"; }
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm && mount -t tmpfs shm /dev/shm
mount -t tmpfs run /run
ip link set lo up
ldconfig
# The second serial line carries words to the host and back, so no echo and no translation.
stty -F /dev/ttyS1 raw -echo
boot=ok
for module in $(cat /modules/order); do
	insmod "/modules/$module.ko" || boot="FAILED module $module"
done
. /etc/kvd-vm
mark "boot $boot uptime=$(cut -d' ' -f1 /proc/uptime)"
cd "$ROOT" && "$PYTHON" tests/vm/guest/runner.py
poweroff -f
