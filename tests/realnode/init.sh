# The first process of a node's namespaces: whatever runs on the node ends when it ends, and no mount outlives it.
#   unshare --mount --pid --net ... sh init.sh FOLDER NAME
set -eu
folder=$1 name=$2

# What a kubelet and a container runtime keep at fixed places lies in the node's folder.
for part in lib log; do mount --bind "$folder/$part" "/var/$part"; done
mount --bind "$folder/run" /run
mount -t tmpfs containerd /var/lib/containerd  # overlayfs needs something below it that is not overlayfs itself

# The kubelet sets kernel parameters of the whole machine; here it sets copies of them.
for parameter in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops \
    kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
  copy=$folder/sysctl/$parameter
  mkdir -p "${copy%/*}"
  cat "/proc/sys/$parameter" > "$copy"
  mount --bind "$copy" "/proc/sys/$parameter"
done

mount --make-rshared /
hostname "$name"
ip link set lo up
: > "$folder/ready"
# Waits as the first process has to: the ends of orphans are noticed.
while :; do sleep 3600 & wait; done
