# SPDX-License-Identifier: MIT OR Apache-2.0
# Who may do what in user namespaces: prints errors and owners, for a comparison
# with the kernel. As root.
semget='exit(defined($id = semget($ARGV[0], 1, oct $ARGV[1])) ? 0 : $! + 0)'
getval='exit(defined semctl($ARGV[0], 0, 12, 0) ? 0 : $! + 0)'
remove='exit(defined semctl($ARGV[0], 0, 0, 0) ? 0 : $! + 0)'
owner='$s = ""; semctl($ARGV[0], 0, 2, $s) or exit $!; print join(" ", (unpack "iI4", $s)[1 .. 4])'
user='setpriv --reuid 1234 --regid 1234 --clear-groups'
try() {
	what=$1
	shift
	"$@"
	echo "$what: $?"
}
roots=$(ipcmk -S 1 -p 600 | tr -dc 0-9)
others=$($user ipcmk -S 1 -p 600 | tr -dc 0-9)
for in in "" "unshare -U" "unshare -Ur" "unshare -Uri"; do
	try "a user, its own, $in" $user $in perl -e "$getval" "$others"
	try "its owner" $user $in perl -e "$owner" "$others"
	try "root's" $user $in perl -e "$getval" "$roots"
	try "remove root's" $user $in perl -e "$remove" "$roots"
	try "make one" $user $in perl -e "$semget" 4660 01600
	try "and use it" $user perl -e "$semget" 4660 0600
	ipcrm -S 4660 2>/dev/null
	try "root, its own, $in" $in perl -e "$getval" "$roots"
	try "another user's" $in perl -e "$getval" "$others"
done
try "in an IPC namespace" unshare -i sh -c '
	ipcmk -S 1 -p 600 >/dev/null
	perl -e "$0" 4660 01600 && perl -e "$0" 4660 0600' "$semget"
try "that is over" perl -e "$semget" 4660 0600
ipcrm -s "$roots" -s "$others"
