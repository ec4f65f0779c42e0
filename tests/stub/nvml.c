/* A libnvidia-ml.so.1 that answers from a table of text, at NVIDIA's own ABI (nvml.h). Built by tests/nvml_stub.py.
 *
 * TOPO_AGENT_STUB_NVML names the table: lines "KEY VALUE", sorted, where KEY is a call with what it was asked for, parts
 * joined by commas ("nvmlDeviceGetName,3"), and VALUE is text, numbers, or "!N": the call returns the code N. A call
 * without a line is not supported. Lines for what goes wrong: "hang,KEY", "crash,KEY", "sleep,KEY SECONDS".
 * OLD_DRIVER leaves out the symbols that drivers before 535 have not.
 */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct { char *key, *value; } line_t;

static line_t *lines;
static size_t count_of_lines;
static struct { char key[96]; int code; } injected[8];
static int count_of_injected;
static FILE *calls; /* every key asked for, where a test wants to know */

static int by_key(const void *a, const void *b) { return strcmp(((const line_t *)a)->key, ((const line_t *)b)->key); }

static void load(void)
{
    const char *path = getenv("TOPO_AGENT_STUB_NVML");
    FILE *file;
    char *text, *at, *end;
    long size;
    if (lines) return;
    file = path ? fopen(path, "r") : NULL;
    if (!file || fseek(file, 0, SEEK_END) || (size = ftell(file)) < 0) abort();
    rewind(file);
    text = malloc(size + 1);
    if (fread(text, 1, size, file) != (size_t)size) abort();
    text[size] = 0;
    fclose(file);
    lines = calloc(size / 2 + 1, sizeof *lines);
    for (at = text; *at; at = end + 1) {
        end = strchr(at, '\n');
        if (!end) abort();
        *end = 0;
        lines[count_of_lines].key = at;
        at = strchr(at, ' ');
        if (!at) abort();
        *at = 0;
        lines[count_of_lines++].value = at + 1;
    }
    qsort(lines, count_of_lines, sizeof *lines, by_key);
}

static const char *find(const char *key)
{
    line_t wanted = { (char *)key, NULL }, *found;
    load();
    found = bsearch(&wanted, lines, count_of_lines, sizeof *lines, by_key);
    return found ? found->value : NULL;
}

/* The value that a call is to give, or NULL with the code that it is to return instead. */
static const char *answer(nvmlReturn_t *code, const char *format, ...)
{
    char key[96], fault[112];
    const char *value;
    va_list rest;
    int i;
    va_start(rest, format);
    vsnprintf(key, sizeof key, format, rest);
    va_end(rest);
    if (calls) fprintf(calls, "%s\n", key);
    snprintf(fault, sizeof fault, "sleep,%s", key);
    if ((value = find(fault))) {
        double seconds = atof(value);
        struct timespec rest_of_it = { (time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9) };
        nanosleep(&rest_of_it, NULL);
    }
    snprintf(fault, sizeof fault, "hang,%s", key);
    while (find(fault)) sleep(1);
    snprintf(fault, sizeof fault, "crash,%s", key);
    if (find(fault)) raise(SIGSEGV);
    for (i = 0; i < count_of_injected; i++)
        if (!strcmp(injected[i].key, key)) { *code = injected[i].code; return NULL; }
    value = find(key);
    *code = value ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
    if (value && value[0] == '!') { *code = atoi(value + 1); return NULL; }
    return value;
}

/* For the tests: from now on this call returns this code; all as the table says again; a file for the keys. */
void stub_inject(const char *key, int code)
{
    if (count_of_injected == 8) abort();
    snprintf(injected[count_of_injected].key, sizeof injected[0].key, "%s", key);
    injected[count_of_injected++].code = code;
}
void stub_mend(void) { count_of_injected = 0; }
void stub_log(const char *path)
{
    if (calls) fclose(calls);
    calls = path ? fopen(path, "w") : NULL;
}

/* A device is its place in the table and one; a MIG device has that of its GPU above it. */
static nvmlDevice_t handle_of(unsigned gpu, unsigned mig) { return (nvmlDevice_t)(uintptr_t)(gpu + 1 + (mig << 16)); }
static const char *name_of(nvmlDevice_t device)
{
    static char names[4][32];
    static int next;
    unsigned number = (unsigned)(uintptr_t)device;
    char *name = names[next++ & 3];
    if (number >> 16) snprintf(name, sizeof names[0], "%u.mig%u", (number & 0xffff) - 1, (number >> 16) - 1);
    else snprintf(name, sizeof names[0], "%u", number - 1);
    return name;
}

#define ANSWER(...) nvmlReturn_t code; const char *said = answer(&code, __VA_ARGS__); if (!said) return code
#define NUMBER(call) \
    nvmlReturn_t call(nvmlDevice_t device, unsigned int *number) \
    { ANSWER(#call ",%s", name_of(device)); *number = strtoul(said, NULL, 0); return NVML_SUCCESS; }
#define TEXT(call) \
    nvmlReturn_t call(nvmlDevice_t device, char *text, unsigned int length) \
    { ANSWER(#call ",%s", name_of(device)); return copied(text, length, said); }
#define LINK(call, type) \
    nvmlReturn_t call(nvmlDevice_t device, unsigned int link, type *number) \
    { ANSWER(#call ",%s,%u", name_of(device), link); *number = strtoul(said, NULL, 0); return NVML_SUCCESS; }

/* "%FF" in a table is the byte 0xff: texts need not be UTF-8. */
static size_t raw(unsigned char *to, size_t length, const char *said)
{
    size_t n = 0;
    unsigned byte;
    for (; *said && n < length; n++) {
        if (*said == '%' && sscanf(said + 1, "%2x", &byte) == 1) { to[n] = byte; said += 3; }
        else to[n] = *said++;
    }
    return n;
}
static nvmlReturn_t copied(char *text, unsigned int length, const char *said)
{
    if (strlen(said) >= length) return NVML_ERROR_INSUFFICIENT_SIZE;
    text[raw((unsigned char *)text, length - 1, said)] = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    ANSWER("nvmlInitWithFlags");
    return flags <= 1 ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}
nvmlReturn_t nvmlShutdown(void) { return NVML_SUCCESS; }
const char *nvmlErrorString(nvmlReturn_t code) { (void)code; return "as the stub says"; }

nvmlReturn_t nvmlSystemGetDriverVersion(char *text, unsigned int length)
{ ANSWER("nvmlSystemGetDriverVersion"); return copied(text, length, said); }
nvmlReturn_t nvmlSystemGetNVMLVersion(char *text, unsigned int length)
{ ANSWER("nvmlSystemGetNVMLVersion"); return copied(text, length, said); }
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{ ANSWER("nvmlSystemGetCudaDriverVersion_v2"); *version = atoi(said); return NVML_SUCCESS; }

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *number)
{ ANSWER("nvmlDeviceGetCount_v2"); *number = atoi(said); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{ ANSWER("nvmlDeviceGetHandleByIndex_v2,%u", index); *device = handle_of(atoi(said), 0); return NVML_SUCCESS; }

TEXT(nvmlDeviceGetUUID)
TEXT(nvmlDeviceGetName)
TEXT(nvmlDeviceGetSerial)
NUMBER(nvmlDeviceGetMinorNumber)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth)
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration)
NUMBER(nvmlDeviceGetMaxMigDeviceCount)
NUMBER(nvmlDeviceGetGpuInstanceId)
NUMBER(nvmlDeviceGetComputeInstanceId)
#ifndef OLD_DRIVER
NUMBER(nvmlDeviceGetModuleId)
nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *node)
{ ANSWER("nvmlDeviceGetNumaNodeId,%s", name_of(device)); *node = atoi(said); return NVML_SUCCESS; }
#endif

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{ ANSWER("nvmlDeviceGetPersistenceMode,%s", name_of(device)); *mode = atoi(said); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, nvmlGpuVirtualizationMode_t *mode)
{ ANSWER("nvmlDeviceGetVirtualizationMode,%s", name_of(device)); *mode = atoi(said); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    ANSWER("nvmlDeviceGetCudaComputeCapability,%s", name_of(device));
    return sscanf(said, "%d %d", major, minor) == 2 ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    ANSWER("nvmlDeviceGetMemoryInfo,%s", name_of(device));
    memory->total = strtoull(said, NULL, 0);
    memory->free = memory->used = 0x5a5a5a5a;
    return NVML_SUCCESS;
}

static nvmlReturn_t mask(unsigned long *words, unsigned int length, const char *said)
{
    char *end;
    for (unsigned int i = 0; i < length; i++, said = end) words[i] = strtoul(said, &end, 16);
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int length, unsigned long *words)
{ ANSWER("nvmlDeviceGetCpuAffinity,%s", name_of(device)); return mask(words, length, said); }
nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int length, unsigned long *words,
                                         nvmlAffinityScope_t scope)
{
    ANSWER("nvmlDeviceGetMemoryAffinity,%s", name_of(device));
    return scope == NVML_AFFINITY_SCOPE_NODE ? mask(words, length, said) : NVML_ERROR_INVALID_ARGUMENT;
}

/* "00000000:3B:00.0 0x233010de 0x16c110de" */
static nvmlReturn_t pci(nvmlPciInfo_t *info, const char *said)
{
    const char *rest = strchr(said, ' ');
    memset(info, 0xee, sizeof *info); /* what nobody writes is not zero */
    if (!rest || rest - said >= (long)sizeof info->busId) return NVML_ERROR_UNKNOWN;
    memset(info->busId, 0, sizeof info->busId);
    raw((unsigned char *)info->busId, rest - said, said);
    info->busId[strcspn(info->busId, " ")] = 0;
    sscanf(said, "%x:%x:%x", &info->domain, &info->bus, &info->device);
    sscanf(rest, "%i %i", (int *)&info->pciDeviceId, (int *)&info->pciSubSystemId);
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info)
{ ANSWER("nvmlDeviceGetPciInfo_v3,%s", name_of(device)); return pci(info, said); }
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *info)
{ ANSWER("nvmlDeviceGetNvLinkRemotePciInfo_v2,%s,%u", name_of(device), link); return pci(info, said); }

LINK(nvmlDeviceGetNvLinkState, nvmlEnableState_t)
LINK(nvmlDeviceGetNvLinkVersion, unsigned int)
LINK(nvmlDeviceGetNvLinkRemoteDeviceType, nvmlIntNvLinkDeviceType_t)
nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link, nvmlNvLinkCapability_t which,
                                           unsigned int *has)
{
    ANSWER("nvmlDeviceGetNvLinkCapability,%s,%u", name_of(device), link);
    if (which != NVML_NVLINK_CAP_P2P_SUPPORTED) return NVML_ERROR_INVALID_ARGUMENT;
    *has = atoi(said);
    return NVML_SUCCESS;
}

/* "TYPE VALUE": every entry has a code of its own, and the call succeeds. */
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int number, nvmlFieldValue_t *values)
{
    for (int i = 0; i < number; i++) {
        nvmlReturn_t code;
        const char *said = answer(&code, "nvmlDeviceGetFieldValues,%s,%u,%u", name_of(device), values[i].fieldId,
                                  values[i].scopeId);
        memset(&values[i].value, 0xee, sizeof values[i].value);
        values[i].nvmlReturn = code;
        values[i].timestamp = time(NULL);
        if (!said) continue;
        values[i].valueType = strtoul(said, (char **)&said, 0);
        switch (values[i].valueType) {
        case NVML_VALUE_TYPE_DOUBLE: values[i].value.dVal = strtod(said, NULL); break;
        case NVML_VALUE_TYPE_UNSIGNED_INT: values[i].value.uiVal = strtoul(said, NULL, 0); break;
        case NVML_VALUE_TYPE_UNSIGNED_LONG: values[i].value.ulVal = strtoul(said, NULL, 0); break;
        case NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: values[i].value.ullVal = strtoull(said, NULL, 0); break;
        case NVML_VALUE_TYPE_SIGNED_LONG_LONG: values[i].value.sllVal = strtoll(said, NULL, 0); break;
        case NVML_VALUE_TYPE_SIGNED_INT: values[i].value.siVal = strtol(said, NULL, 0); break;
        case NVML_VALUE_TYPE_UNSIGNED_SHORT: values[i].value.usVal = strtoul(said, NULL, 0); break;
        default: break;
        }
    }
    return NVML_SUCCESS;
}

#ifndef OLD_DRIVER
/* "STATE STATUS MASK SUMMARY UUID-IN-HEX TYPE:ID TYPE:ID …" */
typedef struct { unsigned state, status, mask, summary, number; unsigned char uuid[16]; unsigned types[64], ids[64]; } fabric_t;
static nvmlReturn_t fabric(fabric_t *to, const char *said)
{
    int used, byte;
    memset(to, 0, sizeof *to);
    if (sscanf(said, "%u %u %u %u %n", &to->state, &to->status, &to->mask, &to->summary, &used) != 4) abort();
    said += used;
    for (byte = 0; byte < 16; byte++, said += 2) sscanf(said, "%2hhx", &to->uuid[byte]);
    while (sscanf(said, " %u:%u%n", &to->types[to->number], &to->ids[to->number], &used) == 2) {
        said += used;
        to->number++;
    }
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info)
{
    fabric_t from;
    ANSWER("nvmlDeviceGetGpuFabricInfo,%s", name_of(device));
    memset(info, 0xee, sizeof *info); /* a driver leaves what it has in the padding of state */
    fabric(&from, said);
    memcpy(info->clusterUuid, from.uuid, 16);
    info->status = from.status, info->cliqueId = from.ids[0], info->state = from.state;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *asked)
{
    fabric_t from;
    unsigned version = asked->version;
    nvmlGpuFabricInfo_v3_t *info = (nvmlGpuFabricInfo_v3_t *)asked;
    ANSWER("nvmlDeviceGetGpuFabricInfoV,%s,%u", name_of(device), version >> 24);
    if (version != nvmlGpuFabricInfo_v2 && version != nvmlGpuFabricInfo_v3) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memset(info, 0xee, version & 0xffffff);
    info->version = version;
    fabric(&from, said);
    memcpy(info->clusterUuid, from.uuid, 16);
    info->status = from.status, info->cliqueId = from.ids[0], info->state = from.state, info->healthMask = from.mask;
    if (version == nvmlGpuFabricInfo_v3) info->healthSummary = from.summary;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetGpuFabricInfo_v4(nvmlDevice_t device, nvmlGpuFabricInfo_v4_t *info)
{
    fabric_t from;
    ANSWER("nvmlDeviceGetGpuFabricInfo_v4,%s", name_of(device));
    memset(info, 0xee, sizeof *info);
    fabric(&from, said);
    memcpy(info->clusterUuid, from.uuid, 16);
    for (unsigned i = 0; i < from.number; i++) info->cliques[i].type = from.types[i], info->cliques[i].id = from.ids[i];
    info->status = from.status, info->numCliques = from.number, info->state = from.state;
    info->healthMask = from.mask, info->healthSummary = from.summary;
    return NVML_SUCCESS;
}

/* "SLOT TRAY HOST PEER MODULE GUID-IN-HEX SERIAL" */
nvmlReturn_t nvmlDeviceGetPlatformInfo(nvmlDevice_t device, nvmlPlatformInfo_t *info)
{
    unsigned version = info->version;
    int used, byte;
    ANSWER("nvmlDeviceGetPlatformInfo,%s,%u", name_of(device), version >> 24);
    if (version != nvmlPlatformInfo_v1 && version != nvmlPlatformInfo_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memset(info, 0, sizeof *info);
    info->version = version;
    if (sscanf(said, "%hhu %hhu %hhu %hhu %hhu %n", &info->slotNumber, &info->trayIndex, &info->hostId, &info->peerType,
               &info->moduleId, &used) != 5) abort();
    said += used;
    for (byte = 0; *said != ' '; byte++, said += 2) sscanf(said, "%2hhx", &info->ibGuid[byte]);
    raw(info->chassisSerialNumber, 16, said + 1);
    return NVML_SUCCESS;
}
#endif

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    ANSWER("nvmlDeviceGetMigMode,%s", name_of(device));
    return sscanf(said, "%u %u", current, pending) == 2 ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
    ANSWER("nvmlDeviceGetMigDeviceHandleByIndex,%s,%u", name_of(device), index);
    *mig = handle_of(((unsigned)(uintptr_t)device & 0xffff) - 1, index + 1);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, nvmlGpuTopologyLevel_t *level)
{
    ANSWER("nvmlDeviceGetTopologyCommonAncestor,%s,%s", name_of(a), name_of(b));
    *level = atoi(said);
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, nvmlGpuP2PCapsIndex_t which, nvmlGpuP2PStatus_t *status)
{
    ANSWER("nvmlDeviceGetP2PStatus,%s,%s,%d", name_of(a), name_of(b), which);
    *status = atoi(said);
    return NVML_SUCCESS;
}
